"""lm-evaluation-harness: a task of choices whose data lie in a local file, through its client of completions."""
import json
import os
import pathlib
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402

BASE = os.environ.get("ESPALIER_URL", "http://127.0.0.1:30000")
# The harness counts tokens itself, so it wants the served model's folder.
MODEL = os.environ.get("ESPALIER_MODEL_PATH", str(pathlib.Path(__file__).resolve().parents[2] / "share/default_model"))
ROWS = [{"question": f"{a} and", "choices": [f" {b}", f" {c}"], "label": 0}
        for a, b, c in (("salt", "pepper", "stone"), ("black", "white", "seven"), ("day", "night", "spoon"))]

with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as data:
    data.write("\n".join(json.dumps(row) for row in ROWS))
    data.flush()
    task = {"task": "pairs", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": data.name}}, "test_split": "test",
            "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{label}}", "metric_list": [{"metric": "acc"}]}
    model = LocalCompletionsAPI(base_url=f"{BASE}/v1/completions", model="default", tokenizer=MODEL, max_length=1024)
    print("accuracy", lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0)["results"]["pairs"]["acc,none"])
