"""What somebody does on the machine without a network: offline_user.py BUNDLE PREFIX.

Checks the bundle, installs it, starts the service, asks it, stops it; prints the answer.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.request

bundle, prefix = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    try:
        asked.connect(("192.0.2.1", 9))
        sys.exit("there is a network here")
    except OSError:
        pass
environment = {**os.environ, "WORKHORSE_LANG": "en"}
environment.pop("WORKHORSE_HOME", None)
subprocess.run([sys.executable, f"{bundle}/verify.py"], check=True, env=environment)
install = [sys.executable, f"{bundle}/install.py", "--prefix", prefix]
subprocess.run(install, check=True, env=environment)
up = subprocess.Popen(
    [f"{prefix}/bin/workhorse", "up", "--port", "0", "--no-measure", "--json"],
    stdout=subprocess.PIPE,
    env=environment,
    text=True,
)
document, url = "", None
for line in up.stdout or ():
    document += line
    try:
        url = json.loads(document).get("url")
    except ValueError:
        continue  # the document goes on
    document = ""
    if url:
        break
if url is None:
    sys.exit("it ended before it was ready")
messages = [{"role": "user", "content": "Name three colours."}]
question = {"model": "any", "max_tokens": 16, "messages": messages}
request = urllib.request.Request(
    f"{url}/chat/completions",
    data=json.dumps(question).encode(),
    headers={"Content-Type": "application/json"},
)
try:
    with urllib.request.urlopen(request, timeout=300) as answered:
        print(json.dumps(json.load(answered)["choices"][0]["message"]["content"]))
finally:
    up.terminate()
    up.communicate(timeout=300)
sys.exit(up.returncode)
