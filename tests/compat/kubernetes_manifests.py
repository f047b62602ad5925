#!/usr/bin/env python3
"""Holds the objects of deploy/kubernetes against the published schemas of Kubernetes, their references
against each other, and the alert rules against promtool where that is installed (Debian: prometheus)."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

DEPLOY = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy"
# Of operators that the cluster has; their schemas are not among those of Kubernetes.
FOREIGN = {"InferencePool", "HTTPRoute", "LeaderWorkerSet"}


def read_objects():
    for path in sorted(DEPLOY.glob("kubernetes/*/*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            yield path, item


def check_kustomizations(items):
    """Every file of a folder is named by its kustomization, and every image is given its name there."""
    for path, item in items:
        if item["kind"] != "Kustomization":
            continue
        named = {(path.parent / entry).resolve() for entry in item["resources"]}
        for entry in named:
            assert entry.exists(), f"{path}: there is no {entry}"
        beside = {other for other in path.parent.glob("*.yaml") if other != path}
        assert beside <= named, f"{path} leaves out {beside - named}"
        renamed = {image["name"] for image in item.get("images", [])}
        used = {container["image"] for other, object_ in items if other.parent == path.parent
                for container in containers_of(object_)}
        assert path.parent.name == "router" or used <= renamed, f"{path} does not name {used - renamed}"


def containers_of(item):
    return item.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])


def check_references(items):
    """Probes and services name ports that their containers have, mounts name volumes."""
    for path, item in items:
        for container in containers_of(item):
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in container:
                    assert container[probe]["httpGet"]["port"] in ports, f"{path}: {probe}"
            volumes = {volume["name"] for volume in item["spec"]["template"]["spec"].get("volumes", [])}
            mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounts == volumes, f"{path}: volumes {volumes}, mounts {mounts}"
            assert container["securityContext"]["readOnlyRootFilesystem"], path
    services = {item["metadata"]["name"]: item for _, item in items if item["kind"] == "Service"}
    for name, service in services.items():
        selected = [item for _, item in items if item["kind"] == "Deployment"
                    and service["spec"]["selector"].items() <= item["spec"]["template"]["metadata"]["labels"].items()]
        assert selected, f"the service {name} selects nothing"


def check_expressions():
    """Of the alerts, and of the dashboard with its variables replaced, as recording rules."""
    dashboard = json.loads((DEPLOY / "grafana" / "espalier.json").read_text())
    rules = [{"record": "dashboard:expression", "labels": {"number": str(number)},
              "expr": target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")}
             for number, target in enumerate(target for panel in dashboard["panels"]
                                             for target in panel.get("targets", []))]
    assert len(rules) > 30, len(rules)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus" / "alerts.yaml", file.name], check=True)


def main():
    items = list(read_objects())
    version = kubernetes_validate.latest_version()
    num_validated = 0
    for path, item in items:
        if item["kind"] == "Kustomization" or item["kind"] in FOREIGN:
            continue
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"{path}: {item['kind']}: {error}")
        num_validated += 1
    check_kustomizations(items)
    check_references(items)
    assert num_validated >= 10, num_validated
    for path in sorted(DEPLOY.glob("prometheus/*.yaml")):
        yaml.safe_load(path.read_text())
    if shutil.which("promtool"):
        check_expressions()
    else:
        print("promtool is not installed: the expressions of alerts and dashboard are not parsed")
    print(f"{num_validated} objects are valid for Kubernetes {version}")


if __name__ == "__main__":
    main()
