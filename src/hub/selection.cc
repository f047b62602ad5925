#include "hub/selection.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <map>
#include <set>

namespace espalier::hub {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

bool is_small(std::string_view name) {
  if (name.find('/') != std::string_view::npos) return false;
  if (name.ends_with(".index.json")) return name == kShardIndex;
  static constexpr std::string_view kEnds[] = {".json", ".jinja", ".tiktoken", "tokenizer.model"};
  return name == "merges.txt" || name == "vocab.txt" ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

// "a-00002-of-00003.gguf" is a part of "a.gguf".
std::string without_part(const std::string& name) {
  static constexpr size_t kPart = std::string_view("-00001-of-00001").size();
  const std::string stem = name.substr(0, name.size() - 5);
  if (stem.size() <= kPart) return name;
  const std::string part = stem.substr(stem.size() - kPart);
  const bool counts =
      part[0] == '-' && part.substr(6, 4) == "-of-" && part.find_first_not_of("0123456789", 1) == 6;
  return counts ? stem.substr(0, stem.size() - kPart) + ".gguf" : name;
}

// GGUF models by name, each with its parts in order. Projectors of images are no models.
std::map<std::string, std::vector<std::string>> gguf_models(std::vector<std::string> names) {
  std::ranges::sort(names);
  std::map<std::string, std::vector<std::string>> out;
  for (const std::string& name : names)
    if (lower(name).ends_with(".gguf") && lower(name).find("mmproj") == std::string::npos)
      out[without_part(name)].push_back(name);
  return out;
}

// Whether "org-model.Q4_K_M.gguf" has the quantisation `wanted` behind its last separator.
bool has_quantisation(std::string_view model, std::string_view wanted) {
  const std::string name = lower(model), ending = lower(wanted) + ".gguf";
  return name.ends_with(ending) &&
         (name.size() == ending.size() ||
          std::string_view(".-/").find(name[name.size() - ending.size() - 1]) !=
              std::string_view::npos);
}

Result<Selection> select_gguf(const std::vector<std::string>& names, std::string_view file) {
  const auto models = gguf_models(names);
  std::vector<const std::vector<std::string>*> found;
  std::string listed;
  for (const auto& [model, parts] : models) {
    listed += (listed.empty() ? "" : ", ") + model;
    const bool exact = model == file || parts.front() == file;
    if (exact) found.assign(1, &parts);
    if (exact) break;
    if (file.empty() || has_quantisation(model, file)) found.push_back(&parts);
  }
  if (models.empty())
    return fail(error(StatusCode::kNotFound,
                      "it has neither *.safetensors nor *.gguf, the formats that are read"));
  if (found.size() == 1) return Selection{{}, *found.front(), found.front()->front()};
  return fail(invalid_argument(
      "{}: append one as ':FILE' or its quantisation as ':Q4_K_M'. It has {}",
      found.empty() ? fmt::format("it has no GGUF '{}'", file) : "several GGUF files match",
      listed));
}

}  // namespace

bool Selection::has_index() const { return std::ranges::find(small, kShardIndex) != small.end(); }

Result<Selection> select_files(const std::vector<std::string>& names, std::string_view file) {
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool indexed = has(kShardIndex);
  if (!file.empty() || (!indexed && !has("model.safetensors"))) return select_gguf(names, file);
  if (!has("config.json"))
    return fail(error(StatusCode::kNotFound, "it has no config.json, so it is no model to run"));
  Selection out;
  std::ranges::copy_if(names, std::back_inserter(out.small), is_small);
  if (!indexed) out.weights = {"model.safetensors"};
  return out;
}

Result<std::vector<std::string>> shards_of(std::string_view index_json) {
  boost::system::error_code failed;
  const boost::json::value index =
      boost::json::parse({index_json.data(), index_json.size()}, failed);
  const boost::json::value* map =
      failed || !index.is_object() ? nullptr : index.as_object().if_contains("weight_map");
  if (map == nullptr || !map->is_object())
    return fail(error(StatusCode::kDataLoss, "{} holds no weight_map", kShardIndex));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->as_object())
    if (shard.is_string()) shards.emplace(shard.as_string());
  return std::vector<std::string>(shards.begin(), shards.end());
}

}  // namespace espalier::hub
