//! Tokenizers of every kind, made here: what they encode, what they refuse, and the files around them.

mod damage;
mod encoding;
mod folders;
mod made;
mod one_by_one;
mod spans;
