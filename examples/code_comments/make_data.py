"""Write the prompts of this example: `prompts_train.jsonl` (96) and `prompts_heldout.jsonl` (32).

Both files are shipped; run this only to change the task:

    python examples/code_comments/make_data.py
"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NUM_HELDOUT = 32
QUESTION = "Write a Python function that {task}. Put a comment on every line."

TASKS = """
adds two numbers; averages a list of numbers; checks if a file exists; checks if a list is empty; checks if
a list is sorted; checks if a number is even; checks if a number is negative; checks if a number is prime;
checks if a string is a palindrome; checks if a string is empty; checks if a word is in a sentence; checks
if a year is a leap year; checks if two lists are equal; checks if two words are anagrams; clamps a number
between two limits; computes a factorial; computes a power by repeated squaring; computes compound interest;
computes the area of a circle; computes the area of a triangle; computes the body mass index; computes the
distance between two points; computes the dot product of two lists; computes the greatest common divisor;
computes the hypotenuse of a right triangle; computes the least common multiple; computes the median of a
list; computes the perimeter of a rectangle; computes the price with tax; computes the range of a list;
computes the variance of a list; computes the volume of a sphere; converts a list to a string; converts a
number to binary; converts a string to title case; converts a string to upper case; converts Celsius to
Fahrenheit; converts hours to seconds; converts kilometers to miles; converts Roman numerals to numbers;
copies a list; counts down from ten; counts how often a letter occurs; counts the digits of a number; counts
the lines of a file; counts the negative numbers in a list; counts the vowels in a string; counts the words
in a sentence; creates a multiplication table; creates a random password; divides two numbers safely;
doubles every number in a list; draws a square of stars; finds the first repeated letter; finds the index of
an item; finds the last item of a list; finds the longest word in a sentence; finds the most common item;
finds the second largest number; finds the shortest string in a list; flattens a nested list; formats a
date; formats a phone number; generates the Fibonacci numbers; gets the file extension of a path; greets a
person by name; groups words by their first letter; inserts an item into a sorted list; interleaves two
lists; inverts a dictionary; joins strings with commas; lists the divisors of a number; lists the even
numbers up to a limit; lists the files of a folder; lists the keys of a dictionary; makes an acronym of a
phrase; merges two dictionaries; merges two sorted lists; moves zeros to the end of a list; multiplies all
numbers in a list; multiplies two matrices; pads a string with spaces; parses a line of comma separated
values; picks a random item of a list; prints a triangle of stars; prints every item of a list; prints the
current time; prints the numbers from one to a limit; reads a file into a list of lines; reads a number from
the user; removes duplicates from a list; removes punctuation from a string; removes spaces from a string;
removes the first item of a list; repeats a string; replaces spaces by dashes; returns every second item of
a list; returns the absolute value of a number; returns the day of the week; returns the largest of three
numbers; returns the smallest item of a list; returns the square of a number; returns the sum of a list;
returns the union of two sets; reverses a list; reverses a string; reverses the words of a sentence; rolls
two dice; rotates a list by one; rounds a number to two places; saves a dictionary to a file; searches a
sorted list; shuffles a list; simulates a coin toss; sorts a list by length; sorts a list of numbers; sorts
words by their last letter; splits a bill among friends; splits a list in half; splits a string at commas;
squares every number in a list; subtracts two numbers; sums the digits of a number; swaps two variables;
transposes a matrix; truncates a long string; validates an email address; wraps a text at a width
"""


def write(path: Path, tasks: list[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": QUESTION.format(task=task)}]} for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path.name}: {len(rows)} prompts")


def main() -> None:
    tasks = [" ".join(task.split()) for task in TASKS.split(";")]
    if len(set(tasks)) != 128:
        raise ValueError(f"{len(set(tasks))} different tasks of {len(tasks)}; there should be 128")
    every = len(tasks) // NUM_HELDOUT  # the list is sorted: take the held-out tasks from all over it
    write(FOLDER / "prompts_heldout.jsonl", tasks[::every])
    write(FOLDER / "prompts_train.jsonl", [task for i, task in enumerate(tasks) if i % every])


if __name__ == "__main__":
    main()
