//go:build !unix

package main

import "time"

// processorTime is unknown here.
func processorTime() time.Duration { return 0 }
