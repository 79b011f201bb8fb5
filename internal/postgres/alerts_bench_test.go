package postgres

import (
	"testing"

	"github.com/seed503877ad/limits/internal/storetest"
)

func BenchmarkTake(b *testing.B) { storetest.BenchmarkTake(b, open(b, Config{}), 256) }
