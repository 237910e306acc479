"""The HTTP server over `inference`: routes, schemas, batching, limits, and the page."""
