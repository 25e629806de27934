// Package guide tests that a shard that was written for kubernetes-controller-sharding v0.8.0 runs with our library and
// our services after a change of its import paths. The program in the directory shard has the structure of the example
// in the guide of that project.
package guide
