// Fetches models from a Hugging Face hub into the cache that huggingface_hub shares, and finds them
// there. Thread-safe; processes that fetch the same file wait for each other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "hub/reference.h"

namespace espalier::hub {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::string token;            // of an account; "": none
  std::string ca_file;          // certificates that are trusted, PEM; "": the system's
  std::filesystem::path cache;  // the folder that holds models--org--name
  bool offline = false;         // the cache alone is read
  int connections = 4;          // files that are fetched at once
  Duration retry_delay = std::chrono::seconds(1);  // doubled after each failure of a file
  // Bytes of the weights that are there, of all; called from several threads, one at a time.
  std::function<void(int64_t done, int64_t total)> progress;

  // HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, SSL_CERT_FILE and
  // their former names, as huggingface_hub reads them.
  static HubOptions from_environment();
};

// The snapshot's folder, or the GGUF in it. Only the files that the model needs are fetched; what
// the cache has is not fetched again, and a file that broke off goes on where it ended. Where the
// hub cannot be reached, the commit that the cache knows serves, with a warning. kNotFound: no such
// model, revision or file; kPermissionDenied: it is gated; kUnavailable: no hub, and not in the
// cache; kDataLoss: a file does not match its checksum; kResourceExhausted: the disk is full.
Result<std::filesystem::path> fetch_model(const HubReference& reference, const HubOptions& options);

}  // namespace espalier::hub
