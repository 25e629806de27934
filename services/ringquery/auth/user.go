package auth

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// User is who asks, as the API server knows them. It is never changed once it is made.
type User struct {
	// Name is the user name, such as "system:serviceaccount:monitoring:dashboard". Never empty.
	Name string
	// UID tells users apart that had the same name one after the other. May be empty.
	UID string
	// Groups of the user.
	Groups []string
	// Extra is what else authentication has found out.
	Extra map[string]authorizationv1.ExtraValue
}

// reviewed returns the user that the API server has found to be behind a token.
func reviewed(info *authenticationv1.UserInfo) *User {
	u := &User{Name: info.Username, UID: info.UID, Groups: info.Groups}
	if len(info.Extra) > 0 {
		u.Extra = make(map[string]authorizationv1.ExtraValue, len(info.Extra))
	}

	for key, values := range info.Extra {
		u.Extra[key] = authorizationv1.ExtraValue(values)
	}

	return u
}

// identity is a user with what decisions about them are remembered by.
type identity struct {
	*User

	key string
}

// identify returns the identity of a user: equal for users that are the same in every respect.
func identify(u *User) (*identity, error) {
	text, err := json.Marshal(u) // sorts the keys of maps
	if err != nil {
		return nil, fmt.Errorf("write down user %q: %w", u.Name, err)
	}

	return &identity{u, digest(text)}, nil
}

// digest stands for secrets and long texts in memory.
func digest(parts ...[]byte) string {
	hash := sha256.New()

	for _, part := range parts {
		var length [8]byte
		for i := range length {
			length[i] = byte(len(part) >> (8 * i))
		}

		hash.Write(length[:])
		hash.Write(part)
	}

	return string(hash.Sum(nil))
}
