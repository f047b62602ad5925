// What the examples share: a back end from the command line, and an end that reports errors.
//
//   example_judge                          # the model that ships, in this process
//   example_judge MODEL_FOLDER
//   example_judge http://127.0.0.1:30000   # a server
#pragma once

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "espalier/lang.h"

namespace example {

inline espalier::Result<std::shared_ptr<espalier::lang::Backend>> backend(int argc, char** argv) {
  const std::string where = argc > 1 ? argv[1] : "";
  if (where.starts_with("http://")) return espalier::lang::runtime_endpoint(where);
  return espalier::lang::open_engine(where);
}

// The exit code of main: 0, or 1 after telling what failed and where.
inline int end(const espalier::lang::State& state) {
  if (state.error().ok()) return 0;
  std::cerr << espalier::lang::to_string(state.error_place()) << ": " << state.error().to_string()
            << "\n";
  return 1;
}

inline int end(const espalier::Status& status) {
  if (status.ok()) return 0;
  std::cerr << status.to_string() << "\n";
  return 1;
}

}  // namespace example
