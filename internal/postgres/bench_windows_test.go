package postgres

import (
	"testing"
	"time"
)

// ownCPU is not measured on Windows.
func ownCPU(*testing.B) time.Duration { return 0 }
