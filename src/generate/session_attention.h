// Sessions with another attention policy than the dense one.
#pragma once
#include <functional>
#include <memory>

#include "model/attention_policy.h"
#include "narrows/session.h"

namespace narrows {

using AttentionFactory = std::function<std::unique_ptr<AttentionPolicy>(const ModelSpec&)>;

// For a session that holds no tokens yet. Such a session cannot be stepped together with others.
void set_attention(Session& session, const AttentionFactory& make);

}  // namespace narrows
