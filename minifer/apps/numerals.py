"""Numbers as people read them: three digits, and a unit."""


def three(value: float) -> str:
    """Three digits, or all before the point: 0.0123, 38.4, 1,003.

    >>> three(0.012345), three(98.76), three(1003.4)
    ('0.0123', '98.8', '1,003')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def or_dash(value: float | None) -> str:
    """Three digits, or a dash for what is undefined.

    >>> or_dash(0.012345), or_dash(None)
    ('0.0123', '-')
    """
    return "-" if value is None else three(value)


def milliseconds(seconds: float) -> str:
    """A time in milliseconds.

    >>> milliseconds(0.000412), milliseconds(0.0853), milliseconds(1.24)
    ('0.412 ms', '85.3 ms', '1,240 ms')
    """
    return f"{three(seconds * 1e3)} ms"


def megabytes(count: float) -> str:
    """A size in decimal units, which is what memory bandwidths are given in.

    >>> megabytes(93_700), megabytes(2_030_000)
    ('93.7 KB', '2.03 MB')
    """
    return f"{three(count / 1e6)} MB" if count >= 1e6 else f"{three(count / 1e3)} KB"
