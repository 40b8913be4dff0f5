"""What the app role may do: an exception that names no table would silently grant everything."""

from gpuyard.core.grants import EXCEPTIONS, unknown_tables


def test_every_exception_names_a_table_of_ours() -> None:
    assert EXCEPTIONS
    assert unknown_tables() == set()
