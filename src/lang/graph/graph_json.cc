// Graphs as JSON and back. Every field that has its default is left out.
#include <boost/json.hpp>

#include "lang/graph/graph.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

constexpr NodeKind kKinds[] = {
    NodeKind::kConstantText, NodeKind::kArgument,    NodeKind::kGen,       NodeKind::kSelect,
    NodeKind::kVariable,     NodeKind::kSetVariable, NodeKind::kFork,      NodeKind::kGetForkItem,
    NodeKind::kJoin,         NodeKind::kMedia,       NodeKind::kRoleBegin, NodeKind::kRoleEnd,
    NodeKind::kScopeBegin,   NodeKind::kScopeEnd};

constexpr std::string_view kDtypes[] = {"text", "str", "int", "float", "bool"};

// Calls visit(name, member) for each option: the request fields and those of the language alone.
template <typename Options, typename Visit>
void for_each_option(Options& o, const Visit& visit) {
  const auto visit_field = [&](const auto& field) {
    if constexpr (HasField<decltype(field.option), Options>)
      visit(field.openai_name(), field.option(o));
  };
  for_each_request_field(visit_field);
  for_each_logprob_field(visit_field);
  visit("choices", o.choices);
}

void write(json::object& out, std::string_view name, const std::string& text) {
  if (!text.empty()) out[name] = text;
}
void write(json::object& out, std::string_view name, const Strings& list) {
  if (!list.empty()) out[name] = json::value_from(static_cast<std::vector<std::string>>(list));
}
void write(json::object& out, std::string_view name, const std::vector<int32_t>& list) {
  if (!list.empty()) out[name] = json::value_from(list);
}
template <typename T>
void write(json::object& out, std::string_view name, const std::optional<T>& value) {
  if (value) out[name] = *value;
}

void write(json::object& out, std::string_view name, const std::optional<EarlyStopping>& value) {
  if (!value) return;
  if (*value == EarlyStopping::kNever)
    out[name] = "never";
  else
    out[name] = *value == EarlyStopping::kYes;
}

json::object options_json(const GenOptions& o) {
  json::object out;
  for_each_option(o, [&](std::string_view name, const auto& value) { write(out, name, value); });
  if (o.dtype != Dtype::kText) out["dtype"] = kDtypes[static_cast<size_t>(o.dtype)];
  if (!o.choices.empty()) out["choices_method"] = choices_method_name(o.choices_method);
  return out;
}

// Reads members of one object; the error of the first wrong one names its path.
class Reader {
 public:
  Reader(const json::object& object, std::string place)
      : object_(object), place_(std::move(place)) {}

  const json::value* find(std::string_view name) const {
    const json::value* value = object_.if_contains(name);
    return value != nullptr && !value->is_null() ? value : nullptr;
  }
  void read(std::string_view name, std::string& out) {
    const json::value* value = find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return wrong(name, "a string");
    out = value->get_string();
  }
  void read(std::string_view name, bool& out) {
    const json::value* value = find(name);
    if (value == nullptr) return;
    if (!value->is_bool()) return wrong(name, "true or false");
    out = value->get_bool();
  }
  void read(std::string_view name, EarlyStopping& out) {
    const json::value* value = find(name);
    if (value == nullptr) return;
    const bool never = value->is_string() && value->get_string() == "never";
    if (!never && !value->is_bool()) return wrong(name, "true, false or \"never\"");
    out = never               ? EarlyStopping::kNever
          : value->get_bool() ? EarlyStopping::kYes
                              : EarlyStopping::kNo;
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void read(std::string_view name, T& out) {
    const json::value* value = find(name);
    if (value == nullptr) return;
    json::error_code failed;
    const T number = value->to_number<T>(failed);
    if (failed) return wrong(name, "a number in its range");
    out = number;
  }
  template <typename T>
  void read(std::string_view name, std::optional<T>& out) {
    if (find(name) == nullptr) return;
    T value{};
    read(name, value);
    out = value;
  }
  template <typename T>
  void read_list(std::string_view name, T& out) {
    const json::value* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "a list");
    for (const json::value& item : value->get_array()) {
      using Item = typename T::value_type;
      json::error_code failed;
      if constexpr (std::is_same_v<Item, std::string>) {
        if (!item.is_string()) return wrong(name, "a list of strings");
        out.emplace_back(item.get_string());
      } else {
        out.push_back(item.to_number<Item>(failed));
        if (failed) return wrong(name, "a list of whole numbers");
      }
    }
  }
  void read(std::string_view name, Strings& out) { read_list(name, out); }
  void read(std::string_view name, std::vector<std::string>& out) { read_list(name, out); }
  void read(std::string_view name, std::vector<int32_t>& out) { read_list(name, out); }
  // One of a closed set of names.
  template <typename T, typename Parse>
  void read_name(std::string_view name, T& out, const Parse& parse) {
    std::string text;
    read(name, text);
    if (text.empty()) return;
    const Result<T> value = parse(text);
    if (value) {
      out = *value;
    } else if (status.ok()) {
      status = value.error().with_context(place_);
    }
  }
  void wrong(std::string_view name, std::string_view wanted) {
    if (status.ok()) status = invalid_argument("{}.{} must be {}", place_, name, wanted);
  }

  Status status;

 private:
  const json::object& object_;
  const std::string place_;
};

Result<NodeKind> parse_kind(std::string_view name) {
  for (NodeKind kind : kKinds)
    if (name == node_kind_name(kind)) return kind;
  return fail(invalid_argument("no kind of node is named \"{}\"", name));
}
Result<Dtype> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    if (name == kDtypes[i]) return static_cast<Dtype>(i);
  return fail(invalid_argument("no dtype is named \"{}\": use str, int, float or bool", name));
}
Result<JoinMode> parse_join(std::string_view name) {
  if (name == "gather_variable") return JoinMode::kGatherVariables;
  if (name == "concate_and_append") return JoinMode::kConcatenateAndAppend;
  return fail(invalid_argument("no join is named \"{}\"", name));
}
Result<Media::Kind> parse_media(std::string_view name) {
  if (name == "image") return Media::Kind::kImage;
  if (name == "video") return Media::Kind::kVideo;
  return fail(invalid_argument("no medium is named \"{}\"", name));
}

json::object node_json(const GraphNode& n) {
  json::object out{{"kind", node_kind_name(n.kind)}, {"stream", n.stream}};
  write(out, "text", n.text);
  write(out, "name", n.name);
  if (json::object options = options_json(n.options); !options.empty())
    out["options"] = std::move(options);
  if (n.source_stream >= 0) out["source_stream"] = n.source_stream;
  write(out, "source_name", n.source_name);
  if (n.source_is_argument) out["source_is_argument"] = true;
  write(out, "streams", n.streams);
  if (n.kind == NodeKind::kGetForkItem) {
    out["fork"] = n.fork;
    out["index"] = n.index;
  }
  if (n.kind == NodeKind::kJoin)
    out["mode"] =
        n.join_mode == JoinMode::kGatherVariables ? "gather_variable" : "concate_and_append";
  if (n.kind == NodeKind::kMedia) {
    out["media"] = n.media.kind == Media::Kind::kImage ? "image" : "video";
    out["path"] = n.media.path;
    if (n.media.num_frames > 0) out["num_frames"] = n.media.num_frames;
  }
  if (n.kind == NodeKind::kRoleBegin || n.kind == NodeKind::kRoleEnd)
    out["role"] = role_name(n.role);
  write(out, "where", n.where);
  return out;
}

Result<GraphNode> parse_node(const json::value& value, const std::string& place) {
  if (!value.is_object()) return fail(invalid_argument("{} must be an object", place));
  GraphNode n;
  Reader r(value.get_object(), place);
  if (r.find("kind") == nullptr) return fail(invalid_argument("{}.kind is missing", place));
  r.read_name("kind", n.kind, parse_kind);
  r.read("stream", n.stream);
  r.read("text", n.text);
  r.read("name", n.name);
  r.read("source_stream", n.source_stream);
  r.read("source_name", n.source_name);
  r.read("source_is_argument", n.source_is_argument);
  r.read("streams", n.streams);
  r.read("fork", n.fork);
  r.read("index", n.index);
  r.read_name("mode", n.join_mode, parse_join);
  r.read_name("media", n.media.kind, parse_media);
  r.read("path", n.media.path);
  r.read("num_frames", n.media.num_frames);
  r.read_name("role", n.role, parse_role);
  r.read("where", n.where);
  ESP_RETURN_IF_ERROR(r.status);
  const json::value* options = r.find("options");
  if (options == nullptr) return n;
  if (!options->is_object()) return fail(invalid_argument("{}.options must be an object", place));
  Reader o(options->get_object(), place + ".options");
  for_each_option(n.options, [&](std::string_view name, auto& member) { o.read(name, member); });
  o.read_name("dtype", n.options.dtype, parse_dtype);
  o.read_name("choices_method", n.options.choices_method, parse_choices_method);
  ESP_RETURN_IF_ERROR(o.status);
  return n;
}

}  // namespace

std::string to_json(const Graph& graph) {
  json::array nodes;
  for (const GraphNode& node : graph.nodes) nodes.push_back(node_json(node));
  // A node a line: what changed in a program can be read off a diff.
  std::string out =
      fmt::format("{{\"name\":{},\"parameters\":{},\"num_streams\":{},\"nodes\":[\n",
                  json::serialize(json::value(graph.name)),
                  json::serialize(json::value_from(graph.parameters)), graph.num_streams);
  for (size_t i = 0; i < nodes.size(); ++i)
    out += json::serialize(nodes[i]) + (i + 1 < nodes.size() ? ",\n" : "\n");
  return out + "]}\n";
}

Result<Graph> parse_graph(std::string_view text) {
  json::error_code failed;
  const json::value value = json::parse(text, failed);
  if (failed || !value.is_object())
    return fail(invalid_argument("a program is a JSON object, as to_json writes it"));
  Graph graph;
  Reader r(value.get_object(), "program");
  r.read("name", graph.name);
  r.read("parameters", graph.parameters);
  r.read("num_streams", graph.num_streams);
  ESP_RETURN_IF_ERROR(r.status);
  const json::value* nodes = r.find("nodes");
  if (nodes == nullptr || !nodes->is_array())
    return fail(invalid_argument("program.nodes must be a list"));
  for (size_t i = 0; i < nodes->get_array().size(); ++i) {
    ESP_ASSIGN_OR_RETURN(GraphNode node,
                         parse_node(nodes->get_array()[i], fmt::format("program.nodes[{}]", i)));
    graph.nodes.push_back(std::move(node));
  }
  ESP_RETURN_IF_ERROR(graph.check());
  return graph;
}

}  // namespace espalier::lang
