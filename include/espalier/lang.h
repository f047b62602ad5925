// The frontend language: programs of many model calls. C++20; link Espalier::lang.
//
//   using namespace espalier::lang;
//   auto backend = open_engine();  // the model that ships, in this process
//   State s = run(capital, {.backend = *backend}, "France");
//
// Thread safety, ownership and errors stand beside each class below. An installed copy of this
// header holds the headers that it includes here, and needs those of fmt and tl-expected.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lang/lang.h"
#include "lang/waiting.h"

namespace espalier::lang {

// An engine in this process as a back end: loads the model and starts the engine's threads.
//   model_path: folder, .gguf file or org/name of a hub; empty: the model that ships, "seeing": the
//   one that reads pictures
//   settings: names and values of docs/flags.md, {"context-length", "4096"}
// kNotFound without such a model, kInvalidArgument for an unknown setting.
Result<std::shared_ptr<Backend>> open_engine(
    const std::string& model_path = {},
    const std::vector<std::pair<std::string, std::string>>& settings = {});

}  // namespace espalier::lang
