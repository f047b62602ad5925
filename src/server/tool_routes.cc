// POST /parse_function_call and /separate_reasoning: the parsers by themselves.
#include <boost/json/value.hpp>

#include "server/chat_answer.h"
#include "server/chat_plan.h"
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

struct CallBody {
  std::string text;
  std::shared_ptr<const Json> tools;
  std::optional<std::string> parser;
};

const Fields<CallBody>& call_fields() {
  static const Fields<CallBody> fields = [] {
    Fields<CallBody> f = {
        field<CallBody>("text", "what a model has generated", &CallBody::text),
        custom<CallBody>("tools", R"({"type":"array","items":{"type":"object"}})",
                         "the functions that it may call",
                         [](const Json& value, std::string_view where, CallBody& out) {
                           return read_tools(value, where, out.tools);
                         }),
        field<CallBody>("tool_call_parser", "the format; default: the server's", &CallBody::parser),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

struct ReasoningBody {
  std::string text;
  std::optional<std::string> parser;
};

const Fields<ReasoningBody>& reasoning_fields() {
  static const Fields<ReasoningBody> fields = [] {
    Fields<ReasoningBody> f = {
        field<ReasoningBody>("text", "what a model has generated", &ReasoningBody::text),
        field<ReasoningBody>("reasoning_parser", "the format; default: the server's",
                             &ReasoningBody::parser),
        ignored<ReasoningBody>("return_blocks"),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

template <typename Body>
bool read_body(const Fields<Body>& fields, const HttpRequest& request, const ResponsePtr& response,
               Body& out) {
  auto value = parse_json(request.body);
  Status read = value ? read_fields(fields, *value, "", out) : value.error();
  if (read.ok()) return true;
  response->send(malformed_response(read));
  return false;
}

void handle_parse_function_call(const ContextPtr& context, HttpRequest&& request,
                                ResponsePtr response) {
  CallBody body;
  if (!read_body(call_fields(), request, response, body)) return;
  AnswerFormat format{.reasoning = std::nullopt,
                      .tool_format = body.parser.value_or(context->tool_call_format),
                      .tool_names = {},
                      .tools = body.tools,
                      .response_template = response_template_of(*context)};
  if (body.tools != nullptr)
    for (const Json& tool : body.tools->get_array())
      format.tool_names.emplace_back(tool.at("function").at("name").get_string().c_str());
  if (const auto known =
          make_tool_call_parser(format.tool_format, {}, nullptr, format.response_template);
      !known)
    return response->send(error_response(Dialect::kNative, known.error()));
  ChatAnswer answer(format);
  answer.read(body.text, true);
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("normal_text", answer.text()).key("calls").begin_array();
  for (size_t i = 0; i < answer.calls().size(); ++i) {
    w.begin_object().member("tool_index", i).member("name", answer.calls()[i].name);
    w.member("parameters", answer.calls()[i].arguments).end_object();
  }
  w.end_array().end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

void handle_separate_reasoning(const ContextPtr& context, HttpRequest&& request,
                               ResponsePtr response) {
  ReasoningBody body;
  if (!read_body(reasoning_fields(), request, response, body)) return;
  AnswerFormat format{
      .reasoning = context->reasoning_format, .tool_format = {}, .tool_names = {}, .tools = {}};
  if (body.parser) {
    auto named = named_reasoning_format(*body.parser, context->chat ? &*context->chat : nullptr);
    if (!named) return response->send(error_response(Dialect::kNative, named.error()));
    format.reasoning = std::move(*named);
  }
  if (!format.reasoning)
    return response->send(error_response(
        Dialect::kNative, invalid_argument("reasoning_parser is missing, and the server has none "
                                           "(--reasoning-parser)")));
  ChatAnswer answer(format);
  answer.read(body.text, true);
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("reasoning_text", answer.reasoning()).member("text", answer.text());
  w.end_object();
  response->send(HttpResponse::json(200, std::move(out)));
}

std::string parse_function_call_schema() { return schema_of(call_fields()); }
std::string separate_reasoning_schema() { return schema_of(reasoning_fields()); }

}  // namespace

const std::vector<Route>& tool_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/parse_function_call",
       kUser,
       "Read tool calls out of a text",
       handle_parse_function_call,
       "ParseFunctionCallRequest",
       parse_function_call_schema},
      {{"POST"},
       "/separate_reasoning",
       kUser,
       "Split a text into reasoning and answer",
       handle_separate_reasoning,
       "SeparateReasoningRequest",
       separate_reasoning_schema},
  };
  return table;
}

}  // namespace espalier::server
