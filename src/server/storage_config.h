// The storage of tiers as JSON, as SGLang's --hicache-storage-backend-extra-config and
// PUT /hicache/storage-backend have it.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/config.h"

namespace espalier {

// Reads an object of JSON, or "@FILE" for a file that holds one, so that a password stands in no
// list of processes. An object with a
// "bucket" is of S3, any other of Redis; members that are left out stay as they are in `settings`.
// kInvalidArgument names the member that is wrong, and shows no value of a secret.
Status read_storage_config(std::string_view text, bool allows_file, TierSettings& settings);

}  // namespace espalier
