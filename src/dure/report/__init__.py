"""Pictures and words about runs: curves over seeds, tables to a target, the HTML report."""
