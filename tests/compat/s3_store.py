#!/usr/bin/env python3
"""A tier in moto's S3, whose signatures botocore's code checks: servers share a bucket, and a wrong key is named."""
import json
import os
import pathlib
import sys

import boto3
from botocore.config import Config

# moto reads them when it is imported: every request but those that make the key below is checked.
os.environ.update({"INITIAL_NO_AUTH_ACTION_COUNT": "4"})
from moto.server import ThreadedMotoServer  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import s3_tier_test  # noqa: E402

ALLOW_ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


class Moto:
    """A bucket "cache", and a user whose key s3_tier_test gives to the servers."""

    def __init__(self):
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self.server.start()
        self.endpoint = "http://%s:%d" % self.server.get_host_and_port()
        unchecked = self.client("iam", "any", "any")
        unchecked.create_user(UserName="espalier")
        unchecked.put_user_policy(UserName="espalier", PolicyName="all", PolicyDocument=json.dumps(ALLOW_ALL))
        key = unchecked.create_access_key(UserName="espalier")["AccessKey"]
        s3_tier_test.KEYS.update(AWS_ACCESS_KEY_ID=key["AccessKeyId"], AWS_SECRET_ACCESS_KEY=key["SecretAccessKey"],
                                 AWS_REGION="us-east-1")
        self.s3 = self.client("s3", key["AccessKeyId"], key["SecretAccessKey"])
        self.client("s3", "any", "any").create_bucket(Bucket="cache")

    def client(self, service, key_id, secret):
        return boto3.client(service, region_name="us-east-1", endpoint_url=self.endpoint, aws_access_key_id=key_id,
                            aws_secret_access_key=secret, config=Config(retries={"max_attempts": 1}))

    def num_objects(self):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket="cache")
        return sum(page["KeyCount"] for page in pages)

    def config(self, **more):
        return json.dumps({"bucket": "cache", "endpoint": self.endpoint, "connect_timeout_ms": 10000,
                           "lookup_timeout_ms": 30000, "transfer_timeout_ms": 60000, **more})


def main():
    moto = Moto()
    s3_tier_test.check_attach(moto, s3_tier_test.check_shared(moto))
    moto.server.stop()
    print("ok")


if __name__ == "__main__":
    main()
