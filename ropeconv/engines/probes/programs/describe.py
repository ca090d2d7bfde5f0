"""Prints the versions of distributions, and the file of a package: PACKAGE DISTRIBUTION ...

It runs in the environment of another Python. Nothing is imported but the standard library.
"""

import importlib.metadata
import importlib.util
import json
import sys

package, *names = sys.argv[1:]
versions = {}
for name in names:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        continue
spec = importlib.util.find_spec(package)
place = (spec.origin or "") if spec is not None else ""
print(json.dumps({"versions": versions, "place": place}))
