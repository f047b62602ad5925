// The HTTP face of an engine, or of several: native, OpenAI and admin routes.
//
//   ESP_ASSIGN_OR_RETURN(auto server, Server::create(config, *engine));
//   ESP_RETURN_IF_ERROR(server->start());   // port() answers from here on
//   ... server->stop(std::chrono::seconds(30));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "net/bound_address.h"
#include "server/served_models/served_models.h"
#include "server/server_config.h"

namespace espalier {

class Engine;

// Thread-safe. The engine outlives the server.
class Server {
 public:
  // What can be said without an engine, so before a model is loaded: checks the settings, reads and
  // compiles a stated chat template, and binds host and port (connections are refused until
  // start()). A port that is taken fails with kFailedPrecondition and names it.
  static Result<net::BoundAddress> reserve(const ServerConfig& config);

  // Checks the settings and compiles the chat template. Serves at `address`; without one, start()
  // binds host and port.
  static Result<std::unique_ptr<Server>> create(
      ServerConfig config, Engine& engine, std::optional<net::BoundAddress> address = std::nullopt);
  // A server of several models, which it loads, puts to sleep and unloads itself. The name, the
  // templates and the parsers in `config` are not read: each model brings its own.
  static Result<std::unique_ptr<Server>> create(
      ServerConfig config, ServedModels models,
      std::optional<net::BoundAddress> address = std::nullopt);
  ~Server();  // stop(0) when it still runs

  // Binds, where reserve() has not, and serves, once the models that are to be preloaded are loaded
  // or could not be. A port that is taken fails with kFailedPrecondition
  // and names it.
  Status start();
  int port() const;  // the bound one; 0 before start()

  // Reads the files again that may change while it serves: --api-keys-file, and the certificate and
  // the keys of TLS, for connections to come. A failure changes nothing.
  Status reload();

  // Refuses new work (503), waits until every answer is out or `timeout` has passed, aborts what is
  // left and closes. Afterwards nothing of the server runs any more. A second call does nothing.
  void stop(Duration timeout);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
