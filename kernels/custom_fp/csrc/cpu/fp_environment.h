// Sets round-to-nearest and gradual underflow for the lifetime of an object, whatever the calling thread has set (for
// example with torch.set_flush_denormal). A new thread inherits the settings of its parent.
#pragma once

#include <cfenv>

namespace custom_fp {

class FpEnvironment {
    std::fenv_t saved_;

public:
    FpEnvironment() {
        std::fegetenv(&saved_);
        std::fesetenv(FE_DFL_ENV);  // clears x86's FTZ and DAZ, AArch64's FZ
    }
    ~FpEnvironment() { std::fesetenv(&saved_); }
    FpEnvironment(const FpEnvironment&) = delete;
    FpEnvironment& operator=(const FpEnvironment&) = delete;
};

// Sets the rounding direction for the lifetime of an object. Compilers assume round-to-nearest and may move operations
// across this object, so code that depends on the direction must be in a function that is not inlined.
class RoundingDirection {
    int saved_;

public:
    explicit RoundingDirection(int direction) : saved_(std::fegetround()) { std::fesetround(direction); }
    ~RoundingDirection() { std::fesetround(saved_); }
    RoundingDirection(const RoundingDirection&) = delete;
    RoundingDirection& operator=(const RoundingDirection&) = delete;
};

}  // namespace custom_fp
