#include "train/data_identity.h"

#include "base/text.h"

namespace longreach::train {

DataIdentity DataIdentity::of(const data::TokenStream& training,
                              const std::vector<ValidationSet>& validation) {
    DataIdentity identity{training.fingerprint(), training.tokenizer(), {}};
    for (const ValidationSet& set : validation) identity.validation[set.name] = set.stream.fingerprint();
    return identity;
}

std::string changed_data(const DataIdentity& then, const DataIdentity& now) {
    const auto differ = [](uint64_t a, uint64_t b) { return a != 0 && b != 0 && a != b; };
    std::vector<std::string> changed;
    if (differ(then.training, now.training)) changed.emplace_back("the training data");
    if (differ(then.tokenizer, now.tokenizer)) changed.emplace_back("the tokenizer");
    for (const auto& [name, fingerprint] : then.validation)
        if (const auto at = now.validation.find(name);
            at != now.validation.end() && differ(fingerprint, at->second))
            changed.push_back(name.empty() ? "data.val" : "data.val_sets." + name);
    return join(changed, " and ");
}

}  // namespace longreach::train
