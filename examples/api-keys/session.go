package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// validSession verifies a JSON Web Token (RFC 7519), signed with HMAC-SHA-256. A session is exempt from every limit, so
// the form of a token alone must not do. Your authentication has a library for this.
func validSession(r *http.Request, secret []byte) bool {
	parts := strings.Split(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), ".")
	if len(secret) == 0 || len(parts) != 3 {
		return false
	}
	given, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || !hmac.Equal(given, signature(parts[0]+"."+parts[1], secret)) {
		return false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return false
	}
	var claims struct {
		Expires int64 `json:"exp"`
	}
	return json.Unmarshal(payload, &claims) == nil && time.Now().Unix() < claims.Expires
}

// signature is always HMAC-SHA-256: what the token's header says of its algorithm is the client's word.
func signature(text string, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}
