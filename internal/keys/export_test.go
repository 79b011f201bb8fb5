package keys

import (
	"slices"
	"strings"
)

// Forge returns a key with the id of one key, the secret of another and a correct checksum.
func Forge(prefix, id, other string) string {
	parts := strings.Split(other, "_")
	body := prefix + "_" + id + "_" + parts[len(parts)-2]
	return body + "_" + checksum(body)
}

// CachedIDs returns the ids in the caches: those of keys, and then those that do not exist.
func CachedIDs(r *Registry) []string { return slices.Concat(r.cache.Keys(), r.missing.Keys()) }
