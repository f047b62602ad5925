// POST /v1/grammar/compile and /explain: what a grammar compiles to, or why it does not.
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "server/errors.h"
#include "server/json_fields.h"
#include "server/json_writer.h"
#include "server/openai_request.h"
#include "server/routes.h"

namespace espalier::server {

using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

struct CompileBody {
  SamplingParams sampling;
};

// A grammar as its text, or as the JSON that it is.
Field<CompileBody> grammar_field(const char* name, const char* help,
                                 std::optional<std::string> SamplingParams::*member) {
  return custom<CompileBody>(
      name, R"({"anyOf":[{"type":"string"},{"type":"object"},{"type":"boolean"}]})", help,
      [member](const Json& value, std::string_view where, CompileBody& out) -> Status {
        if (value.is_object() || value.is_bool()) {
          out.sampling.*member = boost::json::serialize(value);
          return {};
        }
        return read_value(value, where, out.sampling.*member);
      });
}

const Fields<CompileBody>& compile_fields() {
  using S = SamplingParams;
  const auto text = [](const char* name, const char* help, auto S::*member) {
    return field<CompileBody>(
        name, help, [member](CompileBody & b) -> auto& { return b.sampling.*member; });
  };
  static const Fields<CompileBody> fields = {
      grammar_field("json_schema", "a JSON Schema, as text or as JSON", &S::json_schema),
      text("regex", "a regular expression", &S::regex),
      text("ebnf", "a grammar in GBNF", &S::ebnf),
      grammar_field("structural_tag", "structural tags, as text or as JSON", &S::structural_tag),
      text("choices", "a list of texts", &S::choices),
      text("json_whitespace", "compact, bounded or any", &S::json_whitespace),
      custom<CompileBody>("response_format", R"({"type":"object"})", "as in /v1/chat/completions",
                          [](const Json& value, std::string_view where, CompileBody& out) {
                            return read_response_format(value, where, out.sampling);
                          }),
      ignored<CompileBody>("model"),
  };
  return fields;
}

void write_report(JsonWriter& w, const GrammarReport& report) {
  w.member("seconds", report.seconds);
  w.member("rules", report.num_rules).member("states", report.num_states);
  w.member("edges", report.num_edges).member("byte_classes", report.num_byte_classes);
  w.member("forced", report.forced);
}

HttpResponse answer(Engine& engine, const CompileBody& body) {
  const auto made = engine.compile_grammar(body.sampling);
  if (!made) return error_response(Dialect::kOpenAi, made.error());
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("compiled", true);
  write_report(w, *made);
  w.end_object();
  return HttpResponse::json(200, std::move(out));
}

constexpr size_t kDrawnStatesMax = 400;  // of each rule

HttpResponse explanation(Engine& engine, const CompileBody& body) {
  const auto made = engine.compile_grammar(body.sampling, kDrawnStatesMax);
  if (!made) return error_response(Dialect::kOpenAi, made.error());
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  write_report(w, *made);
  w.key("rule_names").begin_array();
  for (const std::string& rule : made->rule_names) w.value(rule);
  w.end_array().member("svg", made->svg).end_object();
  return HttpResponse::json(200, std::move(out));
}

using MakeAnswer = HttpResponse (*)(Engine&, const CompileBody&);

// Both wait for a compilation, so the thread for grammars does them, one after the other.
void handle_grammar(const ContextPtr& context, const HttpRequest& request,
                    const ResponsePtr& response, MakeAnswer make) {
  auto value = parse_json(request.body);
  if (!value) return response->send(malformed_response(value.error()));
  CompileBody body;
  if (const Status read = read_fields(compile_fields(), *value, "", body); !read.ok())
    return response->send(read.code() == StatusCode::kInvalidArgument
                              ? malformed_response(read)
                              : error_response(Dialect::kOpenAi, read));
  const bool queued =
      context->threads->grammars.run([context, response, make, body = std::move(body)] {
        response->send(make(context->engine, body));
      });
  if (!queued)
    response->send(error_response(Dialect::kOpenAi,
                                  error(StatusCode::kResourceExhausted,
                                        "other grammars are being compiled; try again later")));
}

void handle_grammar_compile(const ContextPtr& context, HttpRequest&& request,
                            ResponsePtr response) {
  handle_grammar(context, request, response, answer);
}

void handle_grammar_explain(const ContextPtr& context, HttpRequest&& request,
                            ResponsePtr response) {
  handle_grammar(context, request, response, explanation);
}

std::string grammar_compile_schema() { return schema_of(compile_fields()); }

}  // namespace

const std::vector<Route>& grammar_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/grammar/compile",
       kUser,
       "Compile a grammar, or say what is wrong with it",
       handle_grammar_compile,
       "GrammarCompileRequest",
       grammar_compile_schema},
      {{"POST"},
       "/v1/grammar/explain",
       kUser,
       "Compile a grammar and draw its automata, as SVG",
       handle_grammar_explain,
       "GrammarCompileRequest",
       grammar_compile_schema},
  };
  return table;
}

}  // namespace espalier::server
