#include "hub/hub.h"

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/log.h"
#include "hub/download.h"
#include "hub/selection.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return {};
}

bool is_true(std::string_view text) {
  for (std::string_view yes : {"1", "ON", "on", "YES", "yes", "TRUE", "True", "true"})
    if (text == yes) return true;
  return false;
}

std::string content(const fs::path& path) {
  std::stringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

fs::path hf_home() {
  if (const std::string home = variable({"HF_HOME"}); !home.empty()) return home;
  if (const std::string cache = variable({"XDG_CACHE_HOME"}); !cache.empty())
    return fs::path(cache) / "huggingface";
  return fs::path(variable({"HOME"})) / ".cache/huggingface";
}

std::string read_token() {
  std::string token = variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (token.empty()) {
    const std::string path = variable({"HF_TOKEN_PATH"});
    token = content(path.empty() ? hf_home() / "token" : fs::path(path));
  }
  std::erase_if(token, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  return token;
}

// A path that stays in the snapshot.
bool is_inside(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return !path.empty() && normal.is_relative() && *normal.begin() != "..";
}

struct Commit {
  std::string id;
  std::vector<std::string> files;
};

Result<Commit> parse_commit(const std::string& body, const std::string& endpoint) {
  boost::system::error_code failed;
  const boost::json::value info = boost::json::parse(body, failed);
  Commit out;
  const boost::json::object none;
  const boost::json::object& object = !failed && info.is_object() ? info.as_object() : none;
  if (const auto* sha = object.if_contains("sha"); sha != nullptr && sha->is_string())
    out.id = sha->as_string();
  const auto* siblings = object.if_contains("siblings");
  if (!is_commit(out.id) || siblings == nullptr || !siblings->is_array())
    return fail(error(StatusCode::kUnavailable,
                      "{} names no commit and no files of the model: is HF_ENDPOINT a Hugging Face "
                      "hub?",
                      endpoint));
  for (const boost::json::value& sibling : siblings->as_array()) {
    const auto* name = sibling.is_object() ? sibling.as_object().if_contains("rfilename") : nullptr;
    if (name == nullptr || !name->is_string()) continue;
    std::string path(name->as_string());
    if (is_inside(path)) out.files.push_back(std::move(path));
  }
  return out;
}

Result<Commit> find_commit(const HubReference& reference, const HubOptions& options) {
  ESP_ASSIGN_OR_RETURN(Session session, Session::create(session_config(options)));
  ESP_ASSIGN_OR_RETURN(const HubResponse answer,
                       session.get(fmt::format("/api/models/{}/revision/{}", reference.repo,
                                               url_path(reference.revision))));
  ESP_RETURN_IF_ERROR(check_answer(answer, reference, options, "the list of files"));
  return parse_commit(answer.body, options.endpoint);
}

fs::path model_path(const RepoCache& cache, const std::string& commit, const Selection& chosen) {
  return chosen.gguf.empty() ? cache.snapshot(commit) : cache.snapshot(commit) / chosen.gguf;
}

Result<fs::path> download_model(const HubReference& reference, const HubOptions& options,
                                const RepoCache& cache, const Commit& commit) {
  auto chosen = select_files(commit.files, reference.file);
  if (!chosen) return fail(chosen.error().with_context(reference.repo));
  ESP_RETURN_IF_ERROR(cache.create());
  const CommitFiles from{reference, options, cache, commit.id};
  ESP_RETURN_IF_ERROR(download_files(from, chosen->small, false));
  std::vector<std::string> weights = chosen->weights;
  if (chosen->has_index()) {
    ESP_ASSIGN_OR_RETURN(weights, shards_of(content(cache.snapshot(commit.id) / kShardIndex)));
    for (const std::string& shard : weights)
      if (!is_inside(shard))
        return fail(error(StatusCode::kDataLoss, "{}: {} names the file '{}'", reference.repo,
                          kShardIndex, shard));
  }
  ESP_RETURN_IF_ERROR(download_files(from, weights, true));
  ESP_RETURN_IF_ERROR(cache.set_commit(reference.revision, commit.id));
  return model_path(cache, commit.id, *chosen);
}

// What the cache holds of the revision; the failure says what it lacks.
Result<fs::path> find_cached(const HubReference& reference, const RepoCache& cache) {
  const auto lacks = [&](const std::string& what) {
    return fail(error(StatusCode::kUnavailable, "{} holds {} of {} (revision {})",
                      cache.folder().string(), what, reference.repo, reference.revision));
  };
  const std::optional<std::string> commit = cache.commit_of(reference.revision);
  if (!commit) return lacks("nothing");
  const std::vector<std::string> files = cache.files(*commit);
  const auto chosen = select_files(files, reference.file);
  if (!chosen) return lacks("no whole model");
  std::vector<std::string> weights = chosen->weights;
  if (chosen->has_index()) {
    ESP_ASSIGN_OR_RETURN(weights, shards_of(content(cache.snapshot(*commit) / kShardIndex)));
  }
  for (const std::string& weight : weights)
    if (!std::binary_search(files.begin(), files.end(), weight)) return lacks("no " + weight);
  return model_path(cache, *commit, *chosen);
}

}  // namespace

HubOptions HubOptions::from_environment() {
  HubOptions out;
  if (std::string endpoint = variable({"HF_ENDPOINT"}); !endpoint.empty()) {
    while (endpoint.ends_with("/")) endpoint.pop_back();
    out.endpoint = endpoint;
  }
  out.token = read_token();
  out.ca_file = variable({"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"});
  const std::string cache = variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  out.cache = cache.empty() ? hf_home() / "hub" : fs::path(cache);
  out.offline = is_true(variable({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  return out;
}

Result<fs::path> fetch_model(const HubReference& reference, const HubOptions& options) {
  const RepoCache cache(options.cache, reference.repo);
  Result<fs::path> cached = find_cached(reference, cache);
  // A commit never changes, so it needs no hub.
  if (cached && (options.offline || is_commit(reference.revision))) return cached;
  if (options.offline)
    return fail(
        error(StatusCode::kUnavailable,
              "{}, and HF_HUB_OFFLINE forbids to fetch it: unset that, or give --model-path a "
              "folder or a .gguf file",
              cached.error().message()));
  const Result<Commit> commit = find_commit(reference, options);
  if (commit) return download_model(reference, options, cache, *commit);
  if (commit.error().code() != StatusCode::kUnavailable) return fail(commit.error());
  if (cached) {
    log_warning("{}; the cached revision of {} serves", commit.error().message(), reference.repo);
    return cached;
  }
  return fail(
      error(StatusCode::kUnavailable,
            "{}; {}. Without a network, fetch the model elsewhere and give --model-path its "
            "folder; HF_ENDPOINT names another hub, HTTPS_PROXY a proxy",
            commit.error().message(), cached.error().message()));
}

}  // namespace espalier::hub
