"""Results out: JSON lines, CSV, Excel, a file an item, or OpenAI's two files."""

from workhorse.batch.output.claim import check_output, claim_output
from workhorse.batch.output.write import Written, write_output

__all__ = ["Written", "check_output", "claim_output", "write_output"]
