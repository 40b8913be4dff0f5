"""CSV of exactly what is seen."""

import csv
from collections.abc import Iterable, Sequence

from django.http import HttpResponse

from gpuyard.api.attempts import ROWS

# A spreadsheet runs a cell that begins with one of these; an apostrophe makes it text.
RISKY = ("=", "+", "-", "@", "\t", "\r")


def csv_response(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["Cache-Control"] = "private, no-store"
    writer = csv.writer(response)
    writer.writerow(header)
    count = 0
    for row in rows:
        writer.writerow([_cell(value) for value in row])
        count += 1
    response[ROWS] = str(count)
    return response


def _cell(value: object) -> object:
    """Numbers stay numbers; typed text cannot become a formula."""
    if isinstance(value, str) and value.startswith(RISKY):
        return f"'{value}"
    return "" if value is None else value
