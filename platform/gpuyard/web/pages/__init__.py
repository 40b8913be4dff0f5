"""Facts from the selectors, put into the words and shapes of `contexts`."""
