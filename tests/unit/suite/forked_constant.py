"""Program of the tests of `ForkedProcess`. It prints a constant of the product."""

from batchwright.rules.planning.slicing import MAX_SLICE_LINES

if __name__ == "__main__":
    print(MAX_SLICE_LINES)
