"""Gives tensors to a server that serves: /update_weights_from_tensor and _ipc without pickles."""
from __future__ import annotations

import base64
import ctypes
import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Mapping, Optional, Tuple

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def _bytes_of(name: str, tensor: Any) -> Tuple[str, List[int], bytes]:
    """The safetensors type, shape and bytes of an array of NumPy or a tensor of PyTorch."""
    dtype = _DTYPES.get(str(tensor.dtype).rpartition(".")[2])
    if dtype is None:
        raise ValueError(f"{name} is of type {tensor.dtype}; send float32, float16 or bfloat16")
    shape = [int(extent) for extent in tensor.shape]
    if hasattr(tensor, "detach"):
        import torch  # of the caller, whose tensor it is

        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        return dtype, shape, flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return dtype, shape, tensor.tobytes()


def safetensors_bytes(tensors: Mapping[str, Any]) -> bytes:
    """A safetensors file of these tensors."""
    header: Dict[str, Any] = {}
    parts: List[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        dtype, shape, data = _bytes_of(name, tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def update_weights(base_url: str, tensors: Mapping[str, Any], *, weight_version: Optional[str] = None,
                   flush_cache: bool = True, abort_all_requests: bool = False,
                   api_key: Optional[str] = None, timeout: float = 660.0) -> Dict[str, Any]:
    """Replaces the server's tensors of these names and returns its answer.

    base_url: "http://localhost:30000"
    tensors: by the checkpoint's names, arrays of NumPy or tensors of PyTorch on any device, in
        float32, float16 or bfloat16; other tensors of the model stay as they are
    weight_version: the version's name from here on; None leaves it

    What the server refuses is a ValueError with its message, and leaves its weights as they were.
    """
    query = {"flush_cache": str(flush_cache).lower(),
             "abort_all_requests": str(abort_all_requests).lower()}
    if weight_version is not None:
        query["weight_version"] = weight_version
    return _post(f"{base_url.rstrip('/')}/update_weights_from_tensor?{urllib.parse.urlencode(query)}",
                 safetensors_bytes(tensors), "application/octet-stream", api_key, timeout)


def share_weights(base_url: str, tensors: Mapping[str, Any], *, weight_version: Optional[str] = None,
                  flush_cache: bool = True, abort_all_requests: bool = False,
                  api_key: Optional[str] = None, timeout: float = 660.0) -> Dict[str, Any]:
    """The same of PyTorch tensors that lie in the memory of the server's GPU, which copies them there.

    They are contiguous, and stay as they are until this returns. PyTorch has their memory from
    cudaMalloc unless it was told to use expandable_segments, which cannot be shared this way.
    """
    import torch  # of the caller, whose tensors these are

    torch.cuda.synchronize()
    described = [_shared(name, tensor) for name, tensor in tensors.items()]
    body = {"tensors": described, "flush_cache": flush_cache, "abort_all_requests": abort_all_requests,
            "weight_version": weight_version}
    return _post(f"{base_url.rstrip('/')}/update_weights_from_ipc", json.dumps(body).encode(),
                 "application/json", api_key, timeout)


def _shared(name: str, tensor: Any) -> Dict[str, Any]:
    """A tensor of a GPU as the server reads it: a handle of its allocation, and where in it."""
    dtype = _DTYPES.get(str(tensor.dtype).rpartition(".")[2])
    if dtype is None or not tensor.is_cuda or not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, on a GPU, in float32, float16 or bfloat16")
    driver = ctypes.CDLL("libcuda.so.1")
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    handle = (ctypes.c_ubyte * 64)()
    pointer = ctypes.c_uint64(tensor.data_ptr())
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer) != 0 or \
            driver.cuIpcGetMemHandle(ctypes.byref(handle), base) != 0:
        raise ValueError(f"{name} cannot be shared: PyTorch must have its memory from cudaMalloc "
                         "(PYTORCH_CUDA_ALLOC_CONF without expandable_segments)")
    return {"name": name, "dtype": dtype, "shape": list(tensor.shape),
            "handle": base64.b64encode(bytes(handle)).decode(),
            "offset_bytes": tensor.data_ptr() - base.value}


def _post(url: str, data: bytes, content_type: str, api_key: Optional[str],
          timeout: float) -> Dict[str, Any]:
    headers = {"Content-Type": content_type}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ValueError(f"HTTP {error.code}: {error.read().decode(errors='replace')}") from error
