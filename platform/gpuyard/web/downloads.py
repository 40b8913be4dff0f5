"""CSV of exactly what is seen."""

import csv
from collections.abc import Iterable, Sequence

from django.http import HttpResponse

# A spreadsheet runs a cell that begins with one of these; an apostrophe makes it text.
RISKY = ("=", "+", "-", "@", "\t", "\r")


def csv_response(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> HttpResponse:
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    response["Cache-Control"] = "private, no-store"
    writer = csv.writer(response)
    writer.writerow(header)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return response


def _cell(value: object) -> object:
    """Numbers stay numbers; typed text cannot become a formula."""
    if isinstance(value, str) and value.startswith(RISKY):
        return f"'{value}"
    return "" if value is None else value
