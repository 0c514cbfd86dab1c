// Bytes as a connection gives them: in pieces of one size.
#pragma once

#include <string_view>

#include "serve/http_message.h"

namespace longreach::test {

class Pieces final : public serve::HttpBytes {
  public:
    Pieces(std::string_view bytes, size_t size) : bytes_(bytes), size_(size) {}
    std::string_view more() override {
        const std::string_view piece = bytes_.substr(0, size_);
        bytes_.remove_prefix(piece.size());
        return piece;
    }

  private:
    std::string_view bytes_;
    size_t size_;
};

}  // namespace longreach::test
