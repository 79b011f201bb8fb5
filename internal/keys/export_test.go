package keys

import "strings"

// Forge gives the id of one key the secret of another, with the checksum that belongs to it.
func Forge(prefix, id, other string) string {
	parts := strings.Split(other, "_")
	body := prefix + "_" + id + "_" + parts[len(parts)-2]
	return body + "_" + checksum(body)
}
