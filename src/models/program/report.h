// Programs with their costs, for readers: tables and pictures. Layers that are alike are shown
// once.
#pragma once

#include <string>
#include <vector>

#include "models/program/cost.h"
#include "models/program/program.h"

namespace espalier::program {

// Operations [first, last), which stand for `count` layers from first_layer on; first_layer -1:
// before or behind the layers.
struct Section {
  size_t first = 0, last = 0;
  int32_t first_layer = -1;
  int32_t count = 1;
};
std::vector<Section> sections(const Program& program);
// "layers 3 to 31 (29 alike)", "layer 0", "before the layers".
std::string title_of(const Section& section);

// An operation that a back end runs instead of others in some steps.
struct Variant {
  std::string when;      // "steps of one token of one entry"
  std::string replaces;  // "layers 3 to 31 (29 alike): operations 8 to 14 of each"
  std::string line;      // the operation, as to_string() has it
};

struct Report {
  Program program;
  StepShape step;
  std::vector<OpCost> costs;  // of each operation
  OpCost total;
  std::vector<Variant> variants;
};
Report make_report(Program program, const StepShape& step, const WeightBytes& weight_bytes);
// What a GPU runs instead of parts of `program`, which gpu_passes() made of `lowered`: the
// persistent kernel for one token, and blocks of experts for few tokens. Kernels for Hopper alone
// are listed whatever this system has.
std::vector<Variant> gpu_variants(const Program& program, const Program& lowered);

// "1.5 MiB", "3.2 GFLOP".
std::string bytes_text(int64_t bytes);
std::string flops_text(int64_t flops);

// One line for each operation: weights' bytes, other bytes, operations; then the totals.
std::string to_table(const Report& report);
// A drawing of the same, as a whole file.
std::string to_svg(const Report& report);

}  // namespace espalier::program
