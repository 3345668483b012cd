#!/usr/bin/env python3
"""Components of the program: an SBOM in CycloneDX, and their licences.

components.py --target TARGET --features A,B --sbom FILE --licences FILE

Reads Cargo.toml and Cargo.lock of the current directory. A crate is a component if it is linked, or if its name ends with
`-src`: such a build dependency has the sources of a C library. SOURCE_DATE_EPOCH is the time of the SBOM.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

# Files with terms or notices, in a crate or in a C library inside it.
TERMS = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)
# Directories of a crate below which a C library can be.
DEPTH = 3
# Bytes of a file with terms; a larger one is source code with such a name.
MAX_TERMS = 256 * 1024


def main():
    parser = argparse.ArgumentParser()
    for name in ("target", "features", "sbom", "licences"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform",
                              options.target, "--features", options.features))
    packages = {package["id"]: package for package in metadata["packages"]}
    root = metadata["resolve"]["root"]
    edges = linked(metadata, packages, root)
    locked = tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    pathlib.Path(options.sbom).write_text(sbom(packages, root, edges, checksums, options.target))
    pathlib.Path(options.licences).write_text(licences([packages[key] for key in edges if packages[key]["source"]]))


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(metadata, packages, root):
    """Component -> components that it uses, in order of their names."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, waiting = {}, [root]
    while waiting:
        key = waiting.pop()
        if key in found:
            continue
        found[key] = sorted(
            {dep["pkg"] for dep in nodes[key]["deps"] if is_linked(dep, packages)} - {root}, key=lambda key: ref(packages[key]))
        waiting.extend(found[key])
    return dict(sorted(found.items(), key=lambda entry: ref(packages[entry[0]])))


def is_linked(dependency, packages):
    package = packages[dependency["pkg"]]
    if any("proc-macro" in target["kind"] for target in package["targets"]):
        return False
    kinds = [kind["kind"] for kind in dependency["dep_kinds"]]
    return None in kinds or "build" in kinds and package["name"].endswith("-src")


def ref(package):
    return f"pkg:cargo/{package['name']}@{package['version'].replace('+', '%2B')}"


def component(package, checksums):
    made = {"type": "library", "bom-ref": ref(package), "name": package["name"], "version": package["version"],
            "purl": ref(package), "licenses": [{"expression": expression(package)}]}
    if package["description"]:
        made["description"] = " ".join(package["description"].split())
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def expression(package):
    if not package["license"]:
        sys.exit(f"{package['name']} {package['version']} names no licence")
    # The form of crates.io before 2015.
    return package["license"].replace("/", " OR ") if " " not in package["license"] else package["license"]


def sbom(packages, root, edges, checksums, target):
    seconds = int(os.environ["SOURCE_DATE_EPOCH"])
    parts = [component(packages[key], checksums) for key in edges if key != root]
    program = component(packages[root], checksums) | {"type": "application"}
    name = json.dumps([parts, program, target, seconds])
    return json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "tools": {"components": [{"type": "application", "name": "rustc", "version": run("rustc", "--version").split()[1]}]},
            "component": program,
            "properties": [{"name": "target", "value": target}],
        },
        "components": parts,
        "dependencies": [{"ref": ref(packages[key]), "dependsOn": [ref(packages[used]) for used in edges[key]]} for key in edges],
    }, indent=1) + "\n"


def licences(packages):
    """Each text once, after the components that have it."""
    texts, users, without = {}, {}, []
    for package in packages:
        directory = pathlib.Path(package["manifest_path"]).parent
        files = [file for file in sorted(directory.rglob("*")) if is_terms(file, directory)]
        if not files:
            without.append(package)
        for file in files:
            text = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
            digest = hashlib.sha256(" ".join(text.split()).encode()).hexdigest()
            texts.setdefault(digest, text)
            place = file.relative_to(directory)
            users.setdefault(digest, []).append(f"{package['name']} {package['version']}: {place}")
    lines = ["Components of punctual and their licences.", ""]
    lines += [f"{package['name']} {package['version']}: {expression(package)}" for package in packages]
    if without:
        lines += ["", "These have no file with their terms. Their authors, as they name them:"]
        lines += [f"{package['name']} {package['version']}: {', '.join(package['authors']) or package['repository']}" for package in without]
    for digest in sorted(texts, key=lambda digest: users[digest][0]):
        lines += ["", "=" * 80, *users[digest], "-" * 80, texts[digest]]
    return "\n".join(lines) + "\n"


def is_terms(file, directory):
    place = file.relative_to(directory)
    if len(place.parts) > DEPTH or not TERMS.match(place.name) or not file.is_file():
        return False
    return file.suffix.lower() not in (".rs", ".c", ".h", ".py", ".html") and file.stat().st_size <= MAX_TERMS


main()
