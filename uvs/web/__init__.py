"""`uvs web`: a page that shows the hook path and what passes it.

`recorded` reads walks from a file, `live` asks a director while somebody looks, `app` serves the page and its
events (starlette), `command` is the command line; `static/` is the page, which loads nothing from elsewhere.
"""
