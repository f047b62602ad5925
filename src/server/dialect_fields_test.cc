// The page of fields and errors of each dialect, made from the tables that parse and answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "server/errors.h"
#include "server/routes.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

struct Group {
  const char* title;
  Dialect dialect;
  std::vector<std::string> paths;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"OpenAI Responses and conversations",
       Dialect::kOpenAi,
       {"/v1/responses", "/v1/conversations", "/v1/conversations/{id}/items"}},
      {"Anthropic",
       Dialect::kAnthropic,
       {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches"}},
      {"Ollama",
       Dialect::kOllama,
       {"/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/pull"}},
      {"llama.cpp's server",
       Dialect::kLlamaCpp,
       {"/completion", "/infill", "/embedding", "/apply-template"}},
      {"Rerank and moderations", Dialect::kOpenAi, {"/rerank", "/v1/moderations"}},
  };
  return all;
}

std::string escaped(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string type_of(const json::object& schema) {
  if (const json::value* const type = schema.if_contains("type")) {
    if (type->is_string()) return std::string(type->get_string());
  }
  const json::value* const any = schema.if_contains("anyOf");
  if (any == nullptr) return "";
  std::string out;
  for (const json::value& one : any->get_array()) {
    const std::string type = type_of(one.get_object());
    if (!type.empty()) out += (out.empty() ? "" : " or ") + type;
  }
  return out;
}

const Route* post_route(const std::string& path) {
  for (const Route& route : routes())
    if (route.pattern == path && std::ranges::count(route.methods, "POST") > 0) return &route;
  return nullptr;
}

void write_fields(std::ostream& out, const std::string& path) {
  const Route* const route = post_route(path);
  ASSERT_NE(route, nullptr) << path;
  if (route->schema == nullptr) return;
  out << "\n`POST " << path << "`\n\n| field | type | meaning |\n|---|---|---|\n";
  const json::value schema = json::parse(route->schema());
  for (const auto& member : schema.at("properties").as_object()) {
    const json::object& field = member.value().as_object();
    const json::value* const help = field.if_contains("description");
    out << "| `" << std::string(member.key()) << "` | " << type_of(field) << " | "
        << (help == nullptr ? "" : escaped(std::string(help->as_string()))) << " |\n";
  }
}

void write_errors(std::ostream& out, Dialect dialect) {
  const std::pair<StatusCode, const char*> all[] = {
      {StatusCode::kInvalidArgument, "a field is wrong or missing"},
      {StatusCode::kUnimplemented, "a field that is known and not supported"},
      {StatusCode::kNotFound, "no such model, response or file"},
      {StatusCode::kFailedPrecondition, "what this server or model cannot do"},
      {StatusCode::kUnavailable, "the queue is full, or the server starts or stops"},
      {StatusCode::kInternal, "a defect of the server"},
  };
  out << "\n| error | status | body |\n|---|---|---|\n";
  for (const auto& [code, meaning] : all) {
    const net::HttpResponse response = error_response(dialect, error(code, "TEXT"));
    out << "| " << meaning << " | " << response.status << " | `" << response.body << "` |\n";
  }
}

std::string page() {
  std::stringstream out;
  out << "# Fields and errors of each dialect\n\nMade from the tables that read requests and write "
         "errors; a test keeps this page current. [dialects.md](dialects.md) says what the routes "
         "are for. Fields that stand in no table are ignored. A field without a type is accepted "
         "without effect, or refused by name once it is set, as its row says. The fields of "
         "`/v1/chat/completions` and `/v1/completions` stand in `/openapi.json` and in "
         "[request_fields.md](request_fields.md).\n";
  for (const Group& group : groups()) {
    out << "\n## " << group.title << "\n";
    for (const std::string& path : group.paths) write_fields(out, path);
    write_errors(out, group.dialect);
  }
  return out.str();
}

TEST(DialectFieldsPage, IsCurrent) {
  const std::string path = "docs/dialect_fields.md";
  const std::string made = page();
  if (std::getenv("ESPALIER_WRITE_DOCS") != nullptr) std::ofstream(path) << made;
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  EXPECT_EQ(there.str(), made) << "make it anew: ESPALIER_WRITE_DOCS=1 build/release/server_test";
}

}  // namespace
}  // namespace espalier::server
