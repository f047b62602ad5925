// Requests of a server of several models: to the model that each names, or to the front, where a
// route needs none. Internal to the room.
#pragma once

#include <string>
#include <string_view>

#include "server/routes.h"

namespace espalier::server {

// Whether a route is answered without a model: lists, files, stored answers, health, figures.
bool needs_no_model(std::string_view pattern);

// As handle(), with the context of the model that the request names: at once, or once the model is
// loaded. A name that no model has is answered with 404; a model that cannot be loaded with 503, in
// the dialect of the route. Without several models it is handle().
void dispatch(const ContextPtr& front, const Route& route, net::HttpRequest&& request,
              net::ResponsePtr response);

// The list of GET /v1/models and an entry of it, with the state of each model. "": there is none.
std::string served_models_json(const Context& front);
std::string served_model_json(const Context& front, std::string_view name);

// Appends what /metrics shows of the models' states and loads.
void append_metrics(std::string& out, const ModelRegistry& models);

}  // namespace espalier::server
