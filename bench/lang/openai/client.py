"""The client that the counterparts use: OPENAI_BASE_URL names the server."""
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL"),
                api_key=os.environ.get("OPENAI_API_KEY", "none"))
MODEL = os.environ.get("OPENAI_MODEL", "default")
