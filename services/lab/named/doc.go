// Package named tests a ring whose shards have given names and whose objects carry a label of the team's own: the real
// services and shards of the example, with the permissions of their service accounts, and under the admission policies
// of deploy/base.
package named
