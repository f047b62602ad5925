// The program of a model for `espalier inspect --program`: as a table, as JSON or as a picture. The
// functions keep no state.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>

#include "base/status.h"
#include "models/model.h"
#include "models/program/report.h"

namespace espalier::apps {

struct ProgramRequest {
  bool print = false;
  std::filesystem::path svg;  // empty: no picture
  int64_t tokens = 1;         // of the step whose costs are shown
  int64_t context = 0;        // tokens cached before each

  bool wanted() const { return print || !svg.empty(); }
};

// After the passes of the back end: the GPU's, or the CPU's. Opens the checkpoint.
Result<program::Report> report_program(const ModelLoadOptions& options, bool gpu, int64_t kv_bytes,
                                       const ProgramRequest& request);

boost::json::object program_json(const program::Report& report);

// Writes the picture. Fails by the file's name.
Status write_svg(const program::Report& report, const std::filesystem::path& file);

}  // namespace espalier::apps
