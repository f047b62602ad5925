// espalier cache export, espalier cache import: files of cached pages, written and read by a
// running server.
#include <fmt/format.h>

#include <boost/json.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "net/client.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

struct CacheFileOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key, ca_file, text, extra_key;
  bool without_key = false;
};

void add_server_rows(SettingTable& table, CacheFileOptions& options) {
  table.group("Server");
  table.text("url", options.url, "URL", "address of the server");
  table.text("api-key", options.api_key, "KEY", "its key, that of administrators where it has one");
  table.text("ca-file", options.ca_file, "FILE",
             "certificates that are trusted for https, PEM; else the system's");
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

int64_t number_of(const json::object& answer, std::string_view name) {
  const json::value* const value = answer.if_contains(name);
  return value != nullptr && value->is_int64() ? value->get_int64() : 0;
}

std::string error_text(const net::HttpResponse& answer) {
  json::error_code failed;
  const json::value body = json::parse(answer.body, failed);
  if (!failed && body.is_object())
    if (const json::value* message = body.get_object().if_contains("message"))
      if (message->is_string()) return std::string(message->get_string());
  return answer.body.substr(0, 1000);
}

Result<json::object> call(const CacheFileOptions& options, std::string_view path,
                          const json::object& body) {
  net::HttpClientConfig config{.read_timeout = std::chrono::hours(6), .ca_file = options.ca_file};
  if (!options.api_key.empty())
    config.headers.emplace_back("Authorization", "Bearer " + options.api_key);
  ESP_ASSIGN_OR_RETURN(auto client, net::HttpClient::create(options.url, std::move(config)));
  ESP_ASSIGN_OR_RETURN(const net::HttpResponse answer, client.post(path, json::serialize(body)));
  if (answer.status != 200)
    return fail(error(StatusCode::kFailedPrecondition, "{} answers {}: {}", options.url,
                      answer.status, error_text(answer)));
  json::error_code failed;
  const json::value value = json::parse(answer.body, failed);
  if (failed || !value.is_object())
    return fail(error(StatusCode::kDataLoss, "{} does not answer as Espalier does", options.url));
  return value.get_object();
}

std::optional<int> check_words(const CommandLine& command) {
  if (command.words.size() == 1) return std::nullopt;
  return report(invalid_argument("give the name of one file in the server's --cache-file-dir"),
                kExitUsage);
}

}  // namespace

int run_cache_export(const std::vector<std::string>& args) {
  CacheFileOptions options;
  SettingTable table;
  add_server_rows(table, options);
  table.group("What is exported");
  table.text("text", options.text, "TEXT", "only prefixes that begin with this text");
  table.text("extra-key", options.extra_key, "KEY",
             "only prefixes of requests with this extra_key");
  table.toggle("without-extra-key", options.without_key,
               "only prefixes of requests without an extra_key");
  CommandLine command{"espalier cache export",
                      "Writes what a running server has cached to a file in its --cache-file-dir.",
                      "Example:\n  espalier cache export --url http://127.0.0.1:30000 prefixes.kv",
                      "FILE",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (const auto exit_code = check_words(command)) return *exit_code;
  if (options.without_key && !options.extra_key.empty())
    return report(invalid_argument("--extra-key contradicts --without-extra-key; leave one out"),
                  kExitUsage);
  json::object body{{"file", command.words.front()}};
  if (!options.text.empty()) body["text"] = options.text;
  if (options.without_key || !options.extra_key.empty()) body["extra_key"] = options.extra_key;
  const auto answer = call(options, "/cache/export", body);
  if (!answer) return report(answer.error(), kExitFailure);
  fmt::print("{}: {} pages ({} tokens), {}\n", command.words.front(),
             number_of(*answer, "num_pages"), number_of(*answer, "num_tokens"),
             megabytes(number_of(*answer, "num_bytes")));
  if (const int64_t missing = number_of(*answer, "num_missing"); missing > 0)
    fmt::print("{} pages that no tier has were left out\n", missing);
  return kExitOk;
}

int run_cache_import(const std::vector<std::string>& args) {
  CacheFileOptions options;
  SettingTable table;
  add_server_rows(table, options);
  CommandLine command{
      "espalier cache import",
      "Lets a running server take the pages of a file in its --cache-file-dir into its tiers.",
      "Example:\n  espalier cache import --url http://127.0.0.1:30001 prefixes.kv",
      "FILE",
      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (const auto exit_code = check_words(command)) return *exit_code;
  const auto answer = call(options, "/cache/import", {{"file", command.words.front()}});
  if (!answer) return report(answer.error(), kExitFailure);
  fmt::print("{}: {} pages ({} tokens)\n", command.words.front(), number_of(*answer, "num_pages"),
             number_of(*answer, "num_tokens"));
  if (const int64_t missing = number_of(*answer, "num_missing"); missing > 0)
    fmt::print("{} pages found no room\n", missing);
  return kExitOk;
}

}  // namespace espalier::apps
