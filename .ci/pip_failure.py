"""Turn the log of a failed pip into one sentence that says what to do."""

import re
from pathlib import Path

DISK_FULL = re.compile(r"No space left on device|Errno 28|Disk quota exceeded|Errno 122", re.IGNORECASE)
NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|ConnectionError|ConnectionReset|ProxyError|SSLError|"
    r"Max retries exceeded|Temporary failure in name resolution|Name or service not known|"
    r"Network is unreachable|Connection refused|connection broken by"
)
ERROR_LINE = re.compile(r"^\s*(?:ERROR|error): (.+)$", re.MULTILINE)


def explain(text: str, *, title: str, log: Path, full: list[str]) -> str:
    """One sentence for the failed stage `title`; `full` names the folders whose disk has no room left."""
    if full or DISK_FULL.search(text):
        where = ", ".join(full) or f"{log.parent}, the temporary folder or pip's cache"
        return f"the disk is full while {title} ({where}); make room and try again (log: {log})"
    if symptoms := NO_NETWORK.findall(text):
        return (
            f"no connection to the package index while {title} ({symptoms[-1]}); check the network, the "
            f"proxy and pip's index settings, then try again (log: {log})"
        )
    errors = ERROR_LINE.findall(text)
    last = errors[-1].strip().rstrip(".") if errors else "it gave no reason"
    return f"pip failed while {title}: {last}; the whole output is in {log}"
