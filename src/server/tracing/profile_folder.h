// Where the traces of /start_profile are written: in one folder, which --profile-dir names, and in
// folders inside it. A client that may start profiles may therefore fill that folder and no other.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "server/tracing/profile_trace.h"

namespace espalier::server {

// The path of a new trace, in `root` or in the folder `output_dir` inside it ("" is `root`; not
// absolute means: inside it), which is made with mode 0700 where it is missing. The name is
// "PREFIX-ID-TP-0.trace.json", without "PREFIX-" where that is empty. kInvalidArgument where the
// folder leaves `root`, by ".." or by a symbolic link, where a part of the name is no plain name
// (letters, digits, '.', '_' and '-', not first '.'), or where the file is there already.
Result<std::filesystem::path> new_trace_path(const std::filesystem::path& root,
                                             const std::string& output_dir,
                                             const std::string& prefix, const std::string& id);

// Writes a file that appears under its name once it is whole, readable by its owner alone.
Status write_trace_file(const std::filesystem::path& path, const StepProfile& profile,
                        std::string_view model);

}  // namespace espalier::server
