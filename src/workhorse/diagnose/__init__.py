"""From a log to the cause and the fix. Pure: lines and facts come in, findings go out."""
