// The log of requests: a line of JSON for each, appended when its answer has been given. Neither keys nor texts are in it.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "io/file.h"
#include "serve/answer.h"

namespace longreach::serve {

class AccessLog {
  public:
    // Throws an Error for a path that cannot be opened, is a link or is not a regular file.
    explicit AccessLog(const std::string& path, io::Disk& disk = io::Disk::system())
        : file_(io::File::open_or_create(path, io::Writes::appended, disk)) {}

    // A line and its end. A failure ends nothing: take_problem() says the first.
    void write(const std::string& line) noexcept;
    std::string take_problem();  // empty: there is no new one

  private:
    std::mutex mutex_;
    io::File file_;
    std::string problem_;
    bool failed_ = false;
};

// What is known of a request. The line is written when this ends: with the answer, or with the last part of a stream.
class LoggedRequest {
  public:
    // path: one of the server's; empty: any other, which may hold whatever a client put there.
    LoggedRequest(AccessLog& log, std::string model, std::string method, std::string path);
    ~LoggedRequest();
    LoggedRequest(const LoggedRequest&) = delete;
    LoggedRequest& operator=(const LoggedRequest&) = delete;

    int status = 200;
    bool left = false;               // the client has closed the connection, or takes no more
    std::shared_ptr<Answer> answer;  // of the model; null: it was not asked

  private:
    std::string line() const;

    AccessLog& log_;
    const std::string model_, method_, path_;
    const std::chrono::system_clock::time_point at_ = std::chrono::system_clock::now();
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace longreach::serve
