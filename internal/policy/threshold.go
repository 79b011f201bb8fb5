package policy

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Threshold is the fraction of a limit at or below which the remaining amount raises a warning. It is kept as two integers,
// because 0.29 × 100 in floating point is less than 29.
type Threshold struct{ num, den uint64 }

// NewThreshold returns a threshold of 0 to 1.
func NewThreshold(part float64) (Threshold, error) {
	part += 0 // makes -0 a 0
	// At most 18 decimals, so that both integers fit into 64 bits.
	text := strconv.FormatFloat(part, 'f', -1, 64)
	if len(text) > 20 {
		text = strconv.FormatFloat(part, 'f', 18, 64)
	}
	whole, decimals, _ := strings.Cut(text, ".")
	num, err := strconv.ParseUint(whole+decimals, 10, 64)
	if err != nil || !(part <= 1) {
		return Threshold{}, fmt.Errorf("warning threshold %v is out of range; want 0 to 1", part)
	}
	t := Threshold{num: num, den: 1}
	for range decimals {
		t.den *= 10
	}
	return t, nil
}

// Of returns the threshold for a limit, rounded down.
func (t Threshold) Of(limit int64) int64 {
	hi, lo := bits.Mul64(uint64(limit), t.num)
	q, _ := bits.Div64(hi, lo, t.den)
	return int64(q)
}
