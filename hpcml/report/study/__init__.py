"""What a report says, before it has the form of a page, of Markdown or of LaTeX."""
