"""Views for notebooks, thin over plain functions; each has a text form for where HTML is not shown."""
